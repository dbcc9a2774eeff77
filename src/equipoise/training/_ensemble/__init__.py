"""Evaluation and training of many models of one architecture at once."""

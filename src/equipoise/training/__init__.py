"""What local training and measuring of many clients stand on: stacked models, concatenated examples, poisoned data."""

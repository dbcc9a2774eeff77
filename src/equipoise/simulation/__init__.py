"""What a simulated round stands on: the messages of a round, what is measured after it, and what it is checked for."""

"""Training a drafter: text from the target itself, objective, loop, held-out evaluation."""

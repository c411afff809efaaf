"""How little fast memory a training step needs, where each tensor lives, when it moves, and what that costs."""

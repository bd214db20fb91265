"""Real engines for tests: start them, ask them, compare what they answer."""

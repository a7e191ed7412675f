"""Small speculative models: the draft model, its sessions, its trees, and the actor around them."""

"""A real browser for tests: Debian's Chromium, what a page did wrong in it, axe, and harm by text."""

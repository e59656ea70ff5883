"""What goes wrong on purpose, and whether anything was lost or made twice over it."""

"""One HTTP exchange under one deadline. Nothing above this floor knows requests or sockets."""

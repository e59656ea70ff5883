"""HTTP exchanges, each under a deadline. Nothing above this floor knows requests or sockets."""

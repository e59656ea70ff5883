"""What one part of the gateway costs by itself: ``cases`` has them as data, ``runner`` runs them."""

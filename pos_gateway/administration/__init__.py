"""Order administration: what operators decide about dead letters and orders in doubt."""

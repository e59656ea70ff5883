"""Values that are refreshed before they expire, by one worker of the fleet."""

"""What one wrong output shows: where it went wrong, the class of the mistake, the best edit."""

"""What a page needs to go through a block from barrier to barrier, and to break it."""

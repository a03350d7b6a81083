"""The seventh set by three lists: one was looked at first, two were held out at a recording."""

"""The seventh set, in three lists: two were held out at a recording and then looked at."""

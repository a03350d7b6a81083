"""The tenth set, by a writer who had not seen the verdict; it was held out for one recording."""

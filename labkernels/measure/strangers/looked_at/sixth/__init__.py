"""The sixth set of bugs that was held out."""

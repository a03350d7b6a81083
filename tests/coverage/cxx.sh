#!/bin/sh
# g++ whose programs count which of their lines run, for CXX. The compiler's notes on each program
# are kept below GCOV_PREFIX, where the program writes its counts.
set -e
g++ --coverage "$@"
for argument; do
  case "$argument" in
    *.o) notes="${argument%.o}.gcno"
      if [ -f "$notes" ]; then
        mkdir -p "$GCOV_PREFIX${notes%/*}"
        cp "$notes" "$GCOV_PREFIX$notes"
      fi ;;
  esac
done

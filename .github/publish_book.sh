#!/usr/bin/env bash
# Puts _site/ on the branch gh-pages, in the folder of one version; the others stay.
#   bash .github/publish_book.sh latest
set -euo pipefail
version=$1
site=$(pwd)/_site
test -f "$site/index.html"
pages=$(mktemp -d)/pages

if git fetch --quiet origin gh-pages 2>/dev/null; then
  git worktree add --quiet --detach "$pages" FETCH_HEAD
else
  git worktree add --quiet --detach --no-checkout "$pages"
  git -C "$pages" switch --quiet --orphan pages-begin
fi
rm -rf "${pages:?}/$version"
cp -r "$site" "$pages/$version"
touch "$pages/.nojekyll"
echo '<!doctype html><meta http-equiv="refresh" content="0; url=latest/"><a href="latest/">labkernels</a>' \
  >"$pages/index.html"
# Pages serves this file for every address that does not exist.
if [ -f "$pages/latest/404.html" ]; then cp "$pages/latest/404.html" "$pages/404.html"; fi

git -C "$pages" add --all
if ! git -C "$pages" diff --cached --quiet; then
  git -C "$pages" -c user.name=labkernels -c user.email=labkernels@users.noreply.github.com \
    commit --quiet -m "Pages: The book of $version."
  git -C "$pages" push --quiet origin HEAD:refs/heads/gh-pages
fi
git worktree remove --force "$pages"

"""The package's description on an index: README.md, whose links lead to the repository."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)\[([^]]*)]\((?!https?:|#|mailto:)([^)]+)\)")


class RepositoryLinks(MetadataHookInterface):
    """Makes the relative links of README.md absolute, since an index has no files beside it."""

    def update(self, metadata: dict) -> None:
        """Add the description to the package's metadata."""
        address = metadata["urls"]["Repository"]
        kinds = {"": "blob", "!": "raw"}  # a link shows the page of a file, a picture is the file

        def absolute(link: re.Match[str]) -> str:
            mark, words, path = link.groups()
            return f"{mark}[{words}]({address}/{kinds[mark]}/main/{path})"

        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        described = _RELATIVE.sub(absolute, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": described}

"""What a page reads: the compute notebooks whose results its code cells name."""

import re

from cachequant.study import layout


def reads(text: str) -> list[str]:
    """Names of the results that a page with code cells reads, in the order of the study."""
    if "{code-cell}" not in text:
        return []
    cells = "\n".join(re.findall(r"^```\{code-cell\}.*?^```", text, re.DOTALL | re.MULTILINE))
    return [name for name in layout.notebooks() if re.search(rf"""["']{name}["']""", cells)]

"""``python -m hrm.cli``: the same program without the ``hrm`` script on the PATH."""

from __future__ import annotations

from hrm.cli import main

if __name__ == "__main__":
    main()

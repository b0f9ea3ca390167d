"""The documentation site. `make docs` builds it; a warning or a link that leads nowhere is an error."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "rankwise"
author = "The rankwise developers"
copyright = "The rankwise developers"  # noqa: A001  # Sphinx's name
release = version = version_of("rankwise")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "rankwise_docs",
]
exclude_patterns = ["spec"]  # the original pages of the Tcl commands, as they were
nitpicky = False
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # links to headings, as GitHub makes them
intersphinx_mapping = {}

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # with their overloads, the signatures would be longer than the texts; the lists have types
smartquotes = False  # in docstrings, quotes are those of the code
default_role = "py:obj"  # what docstrings have in single backticks is code, and a link where it is a public name
add_module_names = False

html_theme = "furo"
html_title = f"rankwise {release}"
html_static_path = ["_static"]
html_css_files = ["rankwise.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "

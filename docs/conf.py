"""The documentation site. `make docs` builds it; a warning or a link that leads nowhere is an error."""

from importlib.metadata import version as version_of

project = "rankwise"
author = "The rankwise developers"
copyright = "The rankwise developers"
release = version = version_of("rankwise")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["spec"]  # the original pages of the Tcl commands, as they were
nitpicky = False
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # links to headings, as GitHub makes them
intersphinx_mapping = {}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"rankwise {release}"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "

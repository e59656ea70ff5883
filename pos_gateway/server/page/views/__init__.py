"""The views, a file each; ``listed.py`` beside this folder lists them."""

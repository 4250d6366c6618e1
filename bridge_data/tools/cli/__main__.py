"""`python -m bridge_data.tools.cli`, the same as `bridge-data`."""

from bridge_data.tools.cli import main

if __name__ == "__main__":
    main(prog_name="bridge-data")

"""`python -m bridge_data.cli`, the same as `bridge-data`."""

from bridge_data.cli import main

if __name__ == "__main__":
    main(prog_name="bridge-data")

"""Run the command line: `python -m phitodeep`."""

from phitodeep.cli import main

if __name__ == "__main__":
    main(prog_name="phitodeep")

"""`python -m dflash_lab` is `dflash-lab`."""

from dflash_lab.ui.cli.main import main

if __name__ == "__main__":
    main()

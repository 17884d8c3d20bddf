"""`python -m meshnet` is `meshnet`."""

from meshnet.cli.main import main

if __name__ == "__main__":
    main()

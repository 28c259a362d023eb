"""``python -m mooncake_bench`` is ``mooncake-bench``."""

from mooncake_bench.cli.app import main

if __name__ == "__main__":
    main()

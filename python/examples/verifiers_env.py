"""An environment package for verifiers below 0.2: `load_environment` is all it takes. `prime_rl.toml` is for later ones."""

from warpsmith.verifiers import load_environment

__all__ = ["load_environment"]

if __name__ == "__main__":
    import sys

    env = load_environment(sys.argv[1:], mode="tools")
    print(env.get_dataset()[0]["prompt"][-1]["content"])

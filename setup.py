"""Everything about the project is in setup.cfg, except that the wheel puts all of it inside one folder, `pilothouse/`.

The names `supervisor`, `models` and `handlers` are other projects' too; at the top of site-packages they would collide.
"""

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

NAME = "pilothouse"
PACKAGES = find_namespace_packages(include=["docs", "examples*", "handlers*", "models*", "static*", "supervisor*"])


class BuildInOneFolder(build_py):
    """Adds run.py, which lies at the top of the checkout, to the modules of `pilothouse/`."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [*modules, (NAME, "run", "run.py")] if package == NAME else modules


setup(
    cmdclass={"build_py": BuildInOneFolder},
    packages=[NAME, *(f"{NAME}.{package}" for package in PACKAGES)],
    package_dir={
        NAME: f"packing/{NAME}",
        **{f"{NAME}.{package}": package.replace(".", "/") for package in PACKAGES},
    },
)

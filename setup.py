"""What pyproject.toml cannot say: a build starts from nothing.

setuptools keeps what it built before in build/lib, and packs a module that is gone since with the others: `git pull`
and `pip install .` in a clone would install two versions at once.
"""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class Fresh(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": Fresh})

from sizer.cli import run

run()

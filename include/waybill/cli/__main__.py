"""`python -m waybill.cli`, for environments whose scripts are not on PATH."""

from waybill.cli import main

main()

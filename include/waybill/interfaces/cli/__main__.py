"""`python -m waybill.interfaces.cli`, for environments whose scripts are not on PATH."""

from waybill.interfaces.cli import main

main()

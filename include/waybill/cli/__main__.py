"""`python -m waybill.cli`, for where the script is not on the path."""

from waybill.cli import main

main()

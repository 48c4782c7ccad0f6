from poascope.cli import main

main()

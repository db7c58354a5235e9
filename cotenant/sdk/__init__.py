"""What a runner needs: standard library only, each file vendorable alone."""

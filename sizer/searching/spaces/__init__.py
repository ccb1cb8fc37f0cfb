"""What can be searched; one file each."""

"""What is written into `status`: pure functions of what a plan has seen. Equal input gives equal status."""

module routerbench

go 1.26

module github.com/nodegate/nodegate

go 1.26.0

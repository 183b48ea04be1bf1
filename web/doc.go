/*
Package web is a page for operators: it shows which keys are contended, who holds
them and since when, and which tasks stand in line. It goes beside asynqmon:

	locks, err := web.New(rdb, web.Options{RootPath: "/locks", AsynqmonPath: "/asynq"})
	if err != nil {
		return err
	}
	mux.Handle("/locks/", locks)

The page is plain HTML and works without JavaScript; with it, the page is live. All
that it needs is in the package. It runs no inline script, and its
Content-Security-Policy allows files of its own and nothing else.

# Who may do what

[Options].Access decides for each request whether it may see nothing, read, or operate.
Without it, everybody who can reach the page may read, and nobody may operate. The
page has no login of its own: put it behind yours. A request that another site makes
a browser send is refused.

# What it costs

One goroutine looks at all locks while somebody looks at the page, and ends soon
after the last viewer has left. All viewers share what it finds. A look at all locks is
followed by a pause of at least three times as long, and of up to a minute when
there are many locks, so that Redis serves the tasks and not the page.
*/
package web

package web

// Access is what a request may do.
type Access int

const (
	// AccessNone refuses the request with 403.
	AccessNone Access = iota
	// AccessRead shows everything and changes nothing.
	AccessRead
	// AccessOperate shows everything and offers the actions.
	AccessOperate
)

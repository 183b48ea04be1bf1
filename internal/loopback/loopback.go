// Package loopback keeps pages without a login to this machine.
package loopback

import (
	"net"
	"net/http"
	"net/netip"
)

// Is reports whether only this machine reaches a host.
func Is(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// refusal names the variables of automutex web, for requests that come through a proxy.
const refusal = "Without a login this page answers requests for localhost alone, and this one is for another name. " +
	"Behind a proxy automutex web takes a login from AUTOMUTEX_WEB_USER and AUTOMUTEX_WEB_PASSWORD."

// Only answers requests that were sent to this machine by name. Another site could have a
// name that leads here, and read the page in a visitor's browser.
func Only(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !Is(host) {
			http.Error(w, refusal, http.StatusMisdirectedRequest)
			return
		}
		page.ServeHTTP(w, r)
	})
}

package router

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"

	"github.com/relapse-dev/relapse/topology/bgp"
)

type problem struct {
	Error string `json:"error"`
}

// handler is the HTTP API:
//
//	GET    /status           Status
//	GET    /rib              all paths, []Path
//	GET    /neighbors        the peers, []Neighbor
//	DELETE /neighbors/{addr} closes the session and drops the paths; no error when there is none
//	GET    /fib              the kernel's main table, []Route
//	GET    /links            who answers for the watched addresses, []LinkNeighbor
//	PUT    /links/{addr}     watches an address on the link on which the router has the address ?own=
//	PUT    /static           body Static
//	DELETE /static/{prefix}  no error when there is none
//
// A change is in the kernel's table before the response.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", serve(func(context.Context) (Status, error) { return s.now(), nil }))
	mux.HandleFunc("GET /rib", serve(s.speaker.paths))
	mux.HandleFunc("GET /neighbors", serve(s.speaker.neighbors))
	mux.HandleFunc("GET /fib", serve(func(context.Context) ([]bgp.Route, error) { return s.fib() }))
	mux.HandleFunc("GET /links", serve(func(context.Context) ([]bgp.LinkNeighbor, error) { return s.arp.links() }))
	mux.HandleFunc("PUT /links/{addr}", change(func(r *http.Request) ([2]netip.Addr, error) {
		address, err := netip.ParseAddr(r.PathValue("addr"))
		own, err2 := netip.ParseAddr(r.FormValue("own"))
		return [2]netip.Addr{address, own}, errors.Join(err, err2)
	}, func(_ context.Context, addresses [2]netip.Addr) error { return s.arp.watch(addresses[0], addresses[1]) }))
	mux.HandleFunc("DELETE /neighbors/{addr}", change(func(r *http.Request) (netip.Addr, error) {
		return netip.ParseAddr(r.PathValue("addr"))
	}, s.speaker.clear))
	mux.HandleFunc("PUT /static", change(func(r *http.Request) (st Static, err error) {
		err = json.NewDecoder(r.Body).Decode(&st)
		return st, err
	}, s.addStatic))
	mux.HandleFunc("DELETE /static/{prefix...}", change(func(r *http.Request) (netip.Prefix, error) {
		return netip.ParsePrefix(r.PathValue("prefix"))
	}, s.removeStatic))
	return mux
}

func change[T any](parse func(*http.Request) (T, error), do func(context.Context, T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wanted, err := parse(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		switch err := do(r.Context(), wanted); {
		case errors.Is(err, errUnresolved):
			refuse(w, http.StatusUnprocessableEntity, err)
		case err != nil:
			refuse(w, http.StatusInternalServerError, err)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

func serve[T any](read func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := read(r.Context())
		if err != nil {
			refuse(w, http.StatusInternalServerError, err)
			return
		}
		answer(w, http.StatusOK, body)
	}
}

func (s *server) now() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func refuse(w http.ResponseWriter, code int, err error) { answer(w, code, problem{err.Error()}) }

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // fails if the client has disconnected
}

package ipvsdeadlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/await"
)

// The load. The numbers were chosen, not measured against others.
const (
	// endpointsOfBusy is how many endpoints of one Service are taken away
	// while connections to them are open. Each stays in the list of the
	// graceful termination, and with each tick each one costs a dump of all: the
	// longer a tick takes, the more of a sync it meets.
	endpointsOfBusy = 250
	// connections are some more than the endpoints: round robin gives each
	// endpoint one at least.
	connections = 300
	// churned is how many Services have their endpoints replaced without
	// pause, so that a sync with netlink calls in it is always under way. They
	// have no connections: an endpoint with one would go into the list, which
	// the tick walks without a lock, and kube-proxy would crash and not hang.
	churned = 60
	// churnEvery is the time from one change to the next of a Service. All of
	// them change one after the other. A sync takes 2 to 5 s without hardware
	// support for guests: it finds most of them changed. With 40 Services and 4 s a
	// 1.13.0 stood its first tick.
	churnEvery = 3 * time.Second
)

const (
	loadNamespace = metav1.NamespaceDefault
	busyPort      = 8080
)

// busyVIP is the cluster IP of the Service that the connections go through,
// in the part of the range that the API server does not hand out by itself.
var busyVIP = netip.MustParseAddr("10.96.0.100")

// loadLabel marks the load's Services.
var loadLabel = map[string]string{"relapse.dev/load": "ipvs-deadlock"}

// service makes a Service without selector: its endpoints are the operator's
// affair, which is here the load.
func service(name string, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: loadNamespace, Labels: loadLabel},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports:     []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(busyPort)}},
		},
	}
}

// nth is an address of a range.
func nth(p netip.Prefix, n int) netip.Addr {
	bytes := p.Addr().As4()
	bytes[3] = byte(n)
	return netip.AddrFrom4(bytes)
}

func busyEndpoints() []netip.Addr {
	var all []netip.Addr
	for i := range endpointsOfBusy {
		all = append(all, nth(busyRange, i+1))
	}
	return all
}

func churnName(i int) string { return fmt.Sprintf("churn-%02d", i) }

// createServices creates the load's Services, or those of them that are not
// there, and gives all of them endpoints.
func createServices(ctx context.Context, r *framework.Run) error {
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	create := func(s *corev1.Service, addresses ...netip.Addr) error {
		// Created blindly, one with a chosen address is refused for its address.
		err := kube.Get(ctx, client.ObjectKeyFromObject(s), &corev1.Service{})
		if apierrors.IsNotFound(err) {
			err = kube.Create(ctx, s)
		}
		if err != nil {
			return fmt.Errorf("creating Service %s: %w", s.Name, err)
		}
		return setEndpoints(ctx, r, s.Name, addresses...)
	}
	if err := create(service("busy", busyVIP.String()), busyEndpoints()...); err != nil {
		return err
	}
	for i := range churned {
		if err := create(service(churnName(i), ""), nth(churnRange, 1)); err != nil {
			return err
		}
	}
	return nil
}

// mirrored waits until Kubernetes has made EndpointSlices of the Endpoints.
func mirrored(ctx context.Context, r *framework.Run) error {
	return await.Until(ctx, "EndpointSlices of all Services", 200*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var slices discoveryv1.EndpointSliceList
			if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().List(ctx, &slices, client.InNamespace(loadNamespace)); err != nil {
				return false, "", err
			}
			services := map[string]int{}
			for _, s := range slices.Items {
				services[s.Labels[discoveryv1.LabelServiceName]] += len(s.Endpoints)
			}
			complete := 0
			for i := range churned {
				complete += min(1, services[churnName(i)])
			}
			return services["busy"] == endpointsOfBusy && complete == churned,
				fmt.Sprintf("%d endpoints of busy, %d of %d other Services", services["busy"], complete, churned), nil
		})
}

// sink accepts every connection to the load's endpoints and keeps it open.
// Its sockets are in the network of the host that has the addresses.
type sink struct {
	listener net.Listener
	mu       sync.Mutex
	open     map[net.Conn]netip.Addr // by whom it was meant for
}

func openSink(ctx context.Context, r *framework.Run) (*sink, error) {
	host := r.Lab.Host(backends)
	// Any address of the ranges is the host's own (AnyIP).
	for _, p := range []netip.Prefix{busyRange, churnRange} {
		if _, err := host.Exec(ctx, "ip", "route", "replace", "local", p.String(), "dev", "lo"); err != nil {
			return nil, fmt.Errorf("giving the load's endpoints to %s: %w", backends, err)
		}
	}
	s := &sink{open: map[net.Conn]netip.Addr{}}
	err := host.InNetns(ctx, func() (err error) {
		s.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", busyPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening the load's endpoints on %s: %w", backends, err)
	}
	go s.accept()
	return s, nil
}

func (s *sink) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open[conn] = conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		s.mu.Unlock()
		go func() {
			_, _ = io.Copy(io.Discard, conn) // until the client goes
			s.mu.Lock()
			delete(s.open, conn)
			s.mu.Unlock()
			conn.Close()
		}()
	}
}

// counts returns how many connections are open, and to how many endpoints.
func (s *sink) counts() (connections, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := map[netip.Addr]bool{}
	for _, a := range s.open {
		to[a] = true
	}
	return len(s.open), len(to)
}

func (s *sink) close() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		conn.Close()
	}
}

// load is what drives kube-proxy: connections that keep endpoints in the
// graceful-termination list, and Services whose endpoints change all the time.
type load struct {
	sink   *sink
	cancel context.CancelFunc
	done   sync.WaitGroup

	changes atomic.Int64 // of Endpoints

	mu  sync.Mutex
	err error // why a part of it ended early
}

// holdConnections opens connections and keeps them until it is killed. They
// come from the network of the probe's pod, as those of clients do.
var holdConnections = fmt.Sprintf(`
pod=$(pgrep -o -f '^/probe agent') && exec nsenter --net --target "$pod" bash -c '
for i in $(seq %d); do exec {fd}<>/dev/tcp/%s/80 || exit; done
exec sleep infinity'`, connections, busyVIP)

// startLoad opens the connections, takes the endpoints away and begins to
// churn.
func startLoad(ctx context.Context, r *framework.Run, mode string) (*load, error) {
	s, err := openSink(ctx, r)
	if err != nil {
		return nil, err
	}
	// The load goes on after the call: ctx bounds the start only.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &load{sink: s, cancel: cancel}
	l.done.Go(func() {
		_, err := r.Lab.Node(edge).Exec(run, "bash", "-c", holdConnections)
		l.failed(run, err)
	})
	err = await.Until(ctx, "connections to all endpoints", 200*time.Millisecond, time.Minute,
		func(context.Context) (bool, string, error) {
			n, to := s.counts()
			// IPVS goes round robin, iptables by chance.
			return n >= connections && (mode != ipvs || to == endpointsOfBusy), fmt.Sprintf("%d connections to %d endpoints", n, to), l.why()
		})
	if err != nil {
		l.stop()
		return nil, err
	}
	l.done.Go(func() { l.failed(run, l.churn(run, r)) })
	if err := setEndpoints(ctx, r, "busy"); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

// churn replaces the endpoint of one Service after the other, each time by an
// address that it has not had for long: so a table that lags behind differs
// in another way at every moment, and one that has stopped in the same.
func (l *load) churn(ctx context.Context, r *framework.Run) error {
	tick := time.NewTicker(churnEvery / churned)
	defer tick.Stop()
	for n := churned; ; n++ {
		if err := setEndpoints(ctx, r, churnName(n%churned), nth(churnRange, n/churned%250+1)); err != nil {
			return err
		}
		l.changes.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (l *load) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = errors.New("the connections were closed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
}

func (l *load) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// stop ends the load and waits until it has ended.
func (l *load) stop() {
	l.cancel()
	l.sink.close()
	l.done.Wait()
}

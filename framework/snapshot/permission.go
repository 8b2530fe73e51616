package snapshot

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/relapse-dev/relapse/topology/each"
)

// Account is a ServiceAccount that pods run with, and what RBAC permits it.
type Account struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Permissions are the rules of all roles that are bound to it, or to all ServiceAccounts, those of
	// its namespace, or all users.
	Permissions []Permission `json:"permissions,omitempty"`
}

func (a Account) String() string { return a.Namespace + "/" + a.Name }

// Permission is a rule, which permits each of its verbs on each of its resources of each of its API groups. A "*"
// stands for all.
type Permission struct {
	// Namespace is where a RoleBinding permits it; empty: in all of them, and on what is in none.
	Namespace string   `json:"namespace,omitempty"`
	Groups    []string `json:"groups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
	// Names restrict it to the objects of these names; none: no restriction.
	Names []string `json:"names,omitempty"`
}

// Accounts is the source of what RBAC permits the ServiceAccounts of running pods, in order of namespace and name. It
// lists roles, their bindings and Pods: a review of access, which the API server would answer, is created, and who
// may only read cannot create one. Authorizers other than RBAC are not asked. The rules of an aggregated ClusterRole
// are the rules that the controller has filled in: the API server goes by them too.
var Accounts = clusterList("permissions of ServiceAccounts", []*resource{
	listedPods.resource, listedClusterRoles.resource, listedRoles.resource, listedClusterBindings.resource, listedBindings.resource,
}, (*cluster).accounts,
	func(s *Snapshot) *List[Account] { return &s.Accounts }, Account.state).within(rolesTimeout)

// rolesTimeout bounds a reading of permissions: on a busy machine five lists took over a second.
const rolesTimeout = 5 * time.Second

func (a Account) state(to *statements) {
	for _, r := range a.Permissions {
		for _, resource := range r.Resources {
			to.add(API, "RBAC", "ServiceAccount "+a.String()+", "+resource, "",
				"%q of %q in %s, names %q", r.Verbs, r.Groups, cmp.Or(r.Namespace, "all namespaces"), r.Names)
		}
	}
}

// role is a Role, or a ClusterRole, which is in no namespace. Bindings name a role of their kind,
// and a Role is of the binding's namespace.
type role struct{ kind, namespace, name string }

type keptRole struct {
	role
	rules []rbacv1.PolicyRule
}

type keptBinding struct {
	namespace string // empty: of all
	to        []rbacv1.Subject
	ref       rbacv1.RoleRef
}

var (
	rbac               = rbacv1.SchemeGroupVersion
	listedClusterRoles = listing(resourceOf(rbac, "clusterroles", "ClusterRoles"),
		func(o *rbacv1.ClusterRole) (keptRole, bool, error) {
			return keptRole{role{kind: "ClusterRole", name: o.Name}, o.Rules}, true, nil
		})
	listedRoles = listing(resourceOf(rbac, "roles", "Roles"), func(o *rbacv1.Role) (keptRole, bool, error) {
		return keptRole{role{"Role", o.Namespace, o.Name}, o.Rules}, true, nil
	})
	listedClusterBindings = listing(resourceOf(rbac, "clusterrolebindings", "ClusterRoleBindings"),
		func(o *rbacv1.ClusterRoleBinding) (keptBinding, bool, error) {
			return keptBinding{"", o.Subjects, o.RoleRef}, true, nil
		})
	listedBindings = listing(resourceOf(rbac, "rolebindings", "RoleBindings"),
		func(o *rbacv1.RoleBinding) (keptBinding, bool, error) {
			return keptBinding{o.Namespace, o.Subjects, o.RoleRef}, true, nil
		})
)

func (c *cluster) accounts(ctx context.Context) ([]Account, error) {
	pods, err := listedPods.items(ctx, c)
	clusterRoles, err2 := listedClusterRoles.items(ctx, c)
	namespaced, err3 := listedRoles.items(ctx, c)
	clusterBindings, err4 := listedClusterBindings.items(ctx, c)
	bindings, err5 := listedBindings.items(ctx, c)
	if err := failures(err, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	roles := map[role][]rbacv1.PolicyRule{}
	for _, r := range slices.Concat(clusterRoles, namespaced) {
		roles[r.role] = r.rules
	}
	accounts := map[string]*Account{}
	for _, p := range pods {
		if a := (&Account{Namespace: p.images.Namespace, Name: p.images.ServiceAccount}); a.Name != "" { // mirror pods have none
			accounts[a.String()] = a
		}
	}
	for _, b := range slices.Concat(clusterBindings, bindings) {
		bound := role{kind: b.ref.Kind, name: b.ref.Name}
		if b.ref.Kind == "Role" {
			bound.namespace = b.namespace
		}
		for _, a := range accounts {
			if !slices.ContainsFunc(b.to, func(s rbacv1.Subject) bool { return a.matches(s, b.namespace) }) {
				continue
			}
			for _, r := range roles[bound] {
				if len(r.Resources) > 0 { // others permit paths
					a.Permissions = append(a.Permissions, Permission{Namespace: b.namespace, Groups: r.APIGroups,
						Resources: r.Resources, Verbs: r.Verbs, Names: r.ResourceNames})
				}
			}
		}
	}
	return each.Of(slices.SortedFunc(maps.Values(accounts), func(a, b *Account) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}), func(a *Account) Account { return *a }), nil
}

func (a Account) matches(s rbacv1.Subject, namespace string) bool {
	const all = "system:serviceaccounts"
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		return s.Name == a.Name && cmp.Or(s.Namespace, namespace) == a.Namespace
	case rbacv1.GroupKind:
		return slices.Contains([]string{all, all + ":" + a.Namespace, "system:authenticated"}, s.Name)
	}
	return s.Kind == rbacv1.UserKind && s.Name == "system:serviceaccount:"+a.Namespace+":"+a.Name
}

package snapshot

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestAccounts(t *testing.T) {
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	pod := func(namespace, account string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod-" + account}, Spec: corev1.PodSpec{ServiceAccountName: account}}
	}
	rule := func(verb, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: names}
	}
	to := func(kind, namespace, name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: kind, Namespace: namespace, Name: name}}
	}
	ref := func(kind, name string) rbacv1.RoleRef { return rbacv1.RoleRef{Kind: kind, Name: name} }
	metadata := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	lists := map[string]http.HandlerFunc{
		"/api/v1/pods": protobuf(t, &corev1.PodList{Items: []corev1.Pod{pod("shop", "cart"), pod("mail", "mx"), pod("mail", "")}}),
		rbac + "clusterroles": protobufOf(t, rbacv1.SchemeGroupVersion, &rbacv1.ClusterRoleList{Items: []rbacv1.ClusterRole{
			{ObjectMeta: metadata("", "reader"), Rules: []rbacv1.PolicyRule{rule("list", "nodes"), {NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
			{ObjectMeta: metadata("", "all"), Rules: []rbacv1.PolicyRule{rule("get", "pods")}},
		}}),
		rbac + "roles": protobufOf(t, rbacv1.SchemeGroupVersion, &rbacv1.RoleList{Items: []rbacv1.Role{
			{ObjectMeta: metadata("shop", "reader"), Rules: []rbacv1.PolicyRule{rule("get", "secrets", "key")}},
			{ObjectMeta: metadata("mail", "reader"), Rules: []rbacv1.PolicyRule{rule("get", "configmaps")}},
		}}),
		rbac + "clusterrolebindings": protobufOf(t, rbacv1.SchemeGroupVersion, &rbacv1.ClusterRoleBindingList{Items: []rbacv1.ClusterRoleBinding{
			{ObjectMeta: metadata("", "cart"), Subjects: to("ServiceAccount", "shop", "cart"), RoleRef: ref("ClusterRole", "reader")},
			{ObjectMeta: metadata("", "everyone"), Subjects: to("Group", "", "system:serviceaccounts"), RoleRef: ref("ClusterRole", "all")},
			{ObjectMeta: metadata("", "nothing"), Subjects: to("ServiceAccount", "shop", "cart"), RoleRef: ref("ClusterRole", "gone")},
		}}),
		rbac + "rolebindings": protobufOf(t, rbacv1.SchemeGroupVersion, &rbacv1.RoleBindingList{Items: []rbacv1.RoleBinding{
			{ObjectMeta: metadata("shop", "cart"), Subjects: to("ServiceAccount", "", "cart"), RoleRef: ref("Role", "reader")},
			{ObjectMeta: metadata("mail", "mx"), Subjects: to("User", "", "system:serviceaccount:mail:mx"), RoleRef: ref("ClusterRole", "reader")},
			{ObjectMeta: metadata("mail", "shop"), Subjects: to("Group", "", "system:serviceaccounts:shop"), RoleRef: ref("Role", "reader")},
		}}),
	}
	got := must.Get(clusterOf(t, lists).accounts(t.Context()))(t)
	may := func(namespace, verb, resource string, names ...string) Permission {
		return Permission{Namespace: namespace, Groups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, Names: names}
	}
	want := []Account{
		{Namespace: "mail", Name: "mx", Permissions: []Permission{may("", "get", "pods"), may("mail", "list", "nodes")}},
		{Namespace: "shop", Name: "cart", Permissions: []Permission{
			may("", "list", "nodes"), may("", "get", "pods"), may("mail", "get", "configmaps"), may("shop", "get", "secrets", "key"),
		}},
	}
	must.Equal(t, "", want, got)
	// Without one of the lists nothing is known of any account.
	delete(lists, rbac+"rolebindings")
	must.Fail(t, must.Err(clusterOf(t, lists).accounts(t.Context())), "listing RoleBindings")
}
